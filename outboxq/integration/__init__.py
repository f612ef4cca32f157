"""What a framework brings along: the transaction of its request, and the sessions of its handlers."""
