"""Tools from elsewhere: what somebody else's server offers, as tools that an agent can have."""
