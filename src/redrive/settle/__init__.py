"""From outcomes to durable answers."""
