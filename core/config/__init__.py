"""The configuration: its settings by section; how a file is loaded, upgraded, translated from DeerFlow, and masked."""
