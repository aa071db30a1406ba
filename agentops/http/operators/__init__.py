"""What operators read: the form of log lines, and who may see what the site says of itself."""
