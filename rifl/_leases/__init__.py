"""The lease service over gRPC.

- ``peer``: who is at the other end of a channel
- ``openers``: the callers that may open named sessions
- ``requests``: its requests, bytes in and bytes out
- ``service``: the service on a sync or an aio server
"""
