"""Effect of rules on a log in several data centers."""
