"""What clients and nodes share: links to members, routing, columns of requests and results."""
