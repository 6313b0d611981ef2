"""A run as one HTML file that opens from disk: what is said (`facts`), and how it is laid out."""
