"""What a sandbox may use at most, enforced by whatever this machine has for it."""
