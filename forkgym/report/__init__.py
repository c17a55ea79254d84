"""Reports from a run's record: tables and learning curves. Matplotlib and rich are imported only when used."""
