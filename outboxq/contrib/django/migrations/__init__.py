"""Django's migrations, each of which runs outboxq's own migrations up to a particular release."""
