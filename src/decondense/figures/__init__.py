"""Pictures as files, and what they share with the charts of the page. No torch here."""
