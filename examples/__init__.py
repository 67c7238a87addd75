"""Programs that use dayjob. README.md has the commands that run them."""
