"""Figures as files, and the description of charts that they share with the page. No torch here."""
