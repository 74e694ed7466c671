"""Results for people: verdicts, tables, and charts with the text and the table of each."""
