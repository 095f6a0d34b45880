"""Make trainers keep our engine: see docs/integrations.md."""
