"""The difference of two plans on the terminal, rendered from its JSON form: ``show.show_diff``."""
