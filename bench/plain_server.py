"""The yardstick: a plain pyarrow.flight server that serves ready-made batches from memory. Prints its port, serves until killed."""

import sys

import pyarrow as pa
from pyarrow import flight


class PlainServer(flight.FlightServerBase):
    """Serves the batches of one IPC file, as they are, to every DoGet."""

    def __init__(self, path: str):
        super().__init__("grpc://127.0.0.1:0")
        with pa.OSFile(path) as file:
            self.table = pa.ipc.open_file(file).read_all()
        self.batches = self.table.to_batches()

    def do_get(self, context, ticket):
        return flight.GeneratorStream(self.table.schema, iter(self.batches))


if __name__ == "__main__":
    server = PlainServer(sys.argv[1])
    print(server.port, flush=True)
    server.serve()
