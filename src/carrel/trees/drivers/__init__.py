"""The ways of giving private copies, one file each."""
