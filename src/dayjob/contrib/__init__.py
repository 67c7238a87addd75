"""dayjob in web frameworks and database toolkits. Each module needs the extra of its name."""
