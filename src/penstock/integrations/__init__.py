"""The least that a trainer needs to be told to keep our engine: see docs/integrations.md."""
