"""Programs that use nothing but what the docs say, with one check for each promise."""
