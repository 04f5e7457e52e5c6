"""Costs of passes, drafts and rounds: measured, as curves, and predicted from."""
