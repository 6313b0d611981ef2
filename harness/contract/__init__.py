"""Ground floor: the words every other room speaks. Nothing here imports torch at run time."""
