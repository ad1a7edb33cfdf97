"""What people are shown: descriptions, pages, figures, the demonstration."""
