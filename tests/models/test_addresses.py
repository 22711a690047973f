"""Where models are asked, with which key, and by which name they are known."""

import copy

import pytest

from antiphon import Agent, AnthropicModel, OpenAIModel, UsageError
from antiphon.models.model_names import named_model
from tests.models.protocols import KEY

KINDS = {"openai": OpenAIModel, "anthropic": AnthropicModel}
each_kind = pytest.mark.parametrize("provider", KINDS)
LOCAL = "http://127.0.0.1:8000/v1"


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for provider in ("OPENAI", "ANTHROPIC"):
        monkeypatch.delenv(f"{provider}_API_KEY", raising=False)
        monkeypatch.delenv(f"{provider}_BASE_URL", raising=False)


@each_kind
def test_a_missing_key_is_told(provider: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, variable = KINDS[provider]("m"), f"{provider.upper()}_API_KEY"
    with pytest.raises(UsageError, match=f"{provider} needs a key; set {variable}, or give api_key=…"):
        model.check()
    monkeypatch.setenv(variable, " ")
    with pytest.raises(UsageError, match="needs a key"):
        model.check()
    monkeypatch.setenv(variable, f"{KEY}\n")
    model.check()
    assert model._endpoint.address().key == KEY
    monkeypatch.setenv(variable, "two\nlines-of-secret")
    with pytest.raises(UsageError, match=f"the key in {variable} has characters that no key has") as caught:
        model.check()
    assert "lines-of-secret" not in str(caught.value)
    KINDS[provider]("m", api_key=KEY).check()


@each_kind
@pytest.mark.parametrize("url", [LOCAL, "http://localhost:1", "http://[::1]:1/v1/", "http://model.localhost"])
def test_on_this_machine_no_key_is_needed(provider: str, url: str) -> None:
    model = KINDS[provider]("m", base_url=url)
    model.check()
    assert model._endpoint.address().url == url.rstrip("/")


@each_kind
def test_the_environment_names_an_address(provider: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = KINDS[provider]("m", api_key=KEY)
    assert model._endpoint.address().is_home
    monkeypatch.setenv(f"{provider.upper()}_BASE_URL", "https://proxy.example/v1/")
    address = model._endpoint.address()
    assert (address.url, address.is_home) == ("https://proxy.example/v1", False)
    assert KINDS[provider]("m", base_url=LOCAL)._endpoint.address().url == LOCAL
    monkeypatch.setenv(f"{provider.upper()}_BASE_URL", "proxy")
    with pytest.raises(UsageError, match=f"{provider.upper()}_BASE_URL is 'proxy'; give an address"):
        model.check()


@each_kind
@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("api.example", "base_url is 'api.example'; give an address such as"),
        ("ftp://api.example", "give an address such as"),
        ("https://", "give an address such as"),
        ("https://api.example/v1 x", "give an address such as"),
        ("https://api.example:port", "give an address such as"),
        (7, "base_url is 7; give an address"),
        ("https://me:hidden-word@api.example", "has a name or a password in it"),
        ("https://api.example/v1?key=1", "give it without what follows"),
        ("http://api.example/v1", "would travel unencrypted; give an https address, or plain_http=True"),
        ("http://10.0.0.1/v1", "would travel unencrypted"),
    ],
)
def test_an_address_that_cannot_be_used(provider: str, url: str, words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        KINDS[provider]("m", base_url=url)
    assert "hidden-word" not in str(caught.value)


@each_kind
def test_plain_http_when_somebody_says_so(provider: str) -> None:
    model = KINDS[provider]("m", base_url="http://gpu.example:8000/v1", plain_http=True)
    with pytest.raises(UsageError, match="needs a key"):
        model.check()


@each_kind
def test_a_key_that_is_none(provider: str) -> None:
    for key in ("", " padded-secret", "in\nlines-of-secret", 7):
        with pytest.raises(UsageError, match="the api_key is no text") as caught:
            KINDS[provider]("m", api_key=key)
        assert "secret" not in str(caught.value)


@each_kind
@pytest.mark.parametrize("name", ["", " ", None, 7, "a\nb"])
def test_a_name_that_is_none(provider: str, name: str) -> None:
    with pytest.raises(UsageError, match="the name of a model is "):
        KINDS[provider](name)


@each_kind
def test_models_are_values(provider: str) -> None:
    kind = KINDS[provider]
    model = kind("m", base_url=LOCAL, api_key=KEY, max_tokens=5, headers={"X-Key": "hidden-word"}, body={"a": [1]})
    same = kind("m", base_url=LOCAL, api_key=KEY, max_tokens=5, headers={"x-key": "hidden-word"}, body={"a": [1]})
    assert model == same
    assert hash(model) == hash(same)
    assert model != kind("m", base_url=LOCAL, api_key=KEY, max_tokens=6)
    assert kind("m", api_key=KEY) != kind("m", api_key="another")
    assert kind("m") != kind("n")
    assert Agent("a", model=f"{provider}:m") == Agent("a", model=kind("m"))
    shown = f"{kind.__name__}('m', base_url={LOCAL!r}, max_tokens=5, headers=['x-key'], body=['a'])"
    assert repr(model) == shown
    assert (model.provider, model.name) == (provider, "m")
    with pytest.raises(AttributeError):
        model.name = "n"
    assert copy.copy(model) == model


def test_options_are_copied() -> None:
    body = {"a": [1]}
    model = OpenAIModel("m", body=body)
    body["a"].append(2)
    assert model == OpenAIModel("m", body={"a": [1]})


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("openai:gpt-5-mini", OpenAIModel("gpt-5-mini")),
        ("openai:org/model:7b", OpenAIModel("org/model:7b")),
        ("anthropic:claude-sonnet-5", AnthropicModel("claude-sonnet-5")),
    ],
)
def test_models_by_name(name: str, model: object) -> None:
    assert named_model(name) == model


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("gpt-5-mini", "no model is called 'gpt-5-mini'; write a provider before it, such as openai:gpt-5-mini"),
        ("", "no model is called ''; write a provider"),
        (":x", "no model is called ':x'; write a provider"),
        ("Open AI:x", "no model is called 'Open AI:x'; write a provider"),
        ("openai:", "'openai:' names a provider and no model; write one after it"),
        ("anthropic: ", "'anthropic: ' names a provider and no model"),
        (7, "the name of a model is 7; write a provider"),
    ],
)
def test_names_that_are_none(name: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        named_model(name)


def test_other_providers_go_over_the_bridge(monkeypatch: pytest.MonkeyPatch) -> None:
    from antiphon.models import bridge

    monkeypatch.setattr(bridge, "BridgedModel", lambda name: ("bridged", name))
    assert named_model("google:gemini-3-flash") == ("bridged", "google:gemini-3-flash")
