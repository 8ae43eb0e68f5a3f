"""Images: taken in from archives and folders, and kept as root file systems for spaces."""
