"""What puts the client into frameworks and libraries; each module needs an extra of its own."""
