"""Policies that refuse, ask and neutralise: approvals, guardrails, audited commands, control tags."""
