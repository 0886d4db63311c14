"""The lead agent. Reading order: `actor`, `plan`, `agent`, `chain`, `turn`, `recorder`, `effects`, `policies`."""
