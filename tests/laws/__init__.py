"""What holds for every log, every script and every order of events; searched for counterexamples."""
