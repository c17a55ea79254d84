"""Text games that fork: TextWorld, ALFWorld and Z-machine stories (see ``docs/text.md``)."""
