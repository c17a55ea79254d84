"""Three small projects of our own with their tests, and tasks made of them. They are data: nothing imports them."""
