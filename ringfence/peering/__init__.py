"""Code that clients and nodes share: links to members, routing, engines and slot queues."""
