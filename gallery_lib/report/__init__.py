"""Results for people: tables (text and Markdown), plots, and the pictures of a notebook."""
