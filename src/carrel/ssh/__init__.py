"""SSH into spaces: keys, and what OpenSSH's own programs are told."""
