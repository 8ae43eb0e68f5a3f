"""Files of several users, for an ordinary user's daemon; see the README."""
