"""Ports that adapters implement, without their libraries."""
