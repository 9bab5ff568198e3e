"""The same job from bare pyarrow.flight, without the `forebay` package: everything is JSON in places that any Flight client has.

    forebay serve --root data/demo &
    python examples/plain_flight.py grpc://127.0.0.1:7070 digits

Another process that names the same job with the same settings gets the rest of the batches: each batch goes to one of them.
"""

import argparse
import json
import os

import pyarrow as pa
from pyarrow import flight


def say(writer, **message) -> None:
    writer.write_metadata(pa.py_buffer(json.dumps(message).encode()))


def one_pass(client, options, job: dict):
    """Batches of one pass over DoExchange: (metadata, parts). A batch larger than one message comes in parts."""
    # 1. Join the job: the descriptor's command is the job, the answer holds a signed ticket.
    info = client.get_flight_info(flight.FlightDescriptor.for_command(json.dumps(job).encode()), options)
    # 2. Open the stream with the ticket, at the endpoint's location if it names one. One credit is one batch that may be sent.
    endpoint = info.endpoints[0]
    if endpoint.locations:
        client = flight.connect(endpoint.locations[0].uri)
    ticket = endpoint.ticket.ticket
    writer, reader = client.do_exchange(flight.FlightDescriptor.for_command(ticket), options)
    say(writer, credits=4)
    parts = []
    while True:
        chunk = reader.read_chunk()
        if chunk.app_metadata is None:
            continue
        meta = json.loads(chunk.app_metadata.to_pybytes())
        if "end" in meta:
            break
        parts.append(chunk.data)
        if len(parts) == meta["parts"]:
            yield meta, parts
            parts = []
            # 3. The batch was taken: acknowledge it, and let another come.
            say(writer, credits=1, ack=[meta["batch"]], **{"pass": meta["pass"]})
    # 4. Leave. The server ends the stream when it has heard everything.
    say(writer, close=True)
    writer.done_writing()
    try:
        while True:
            reader.read_chunk()
    except StopIteration:
        writer.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("server")
    parser.add_argument("dataset")
    parser.add_argument("--job", default=f"plain-{os.getpid()}")
    args = parser.parse_args()

    client = flight.connect(args.server.replace("grpc://", "grpc+tcp://", 1))
    token = os.environ.get("FOREBAY_TOKEN")
    options = flight.FlightCallOptions(headers=[(b"authorization", f"Bearer {token}".encode())] if token else [])
    job = {
        "job": args.job,
        "dataset": args.dataset,
        "epochs": 1,
        "batch_size": 64,
        "seed": 7,
        "consumer": f"plain-{os.getpid()}",
    }
    rows = batches = 0
    for meta, parts in one_pass(client, options, job):
        batches += 1
        rows += sum(part.num_rows for part in parts)
        if batches == 1:
            for field in parts[0].schema:
                print(f"  {field.name}: {field.type}")
            print(f"  first batch: epoch {meta['epoch']}, batch {meta['batch']}, digest {meta['digest']}")
    print(f"{rows} rows in {batches} batches")

    # Without the package, SQL is any Flight SQL or ADBC driver; a dataset as it is stored is a path.
    info = client.get_flight_info(flight.FlightDescriptor.for_path(args.dataset), options)
    stored = 0
    for endpoint in info.endpoints:
        # A dispatcher names a worker; one process that is both names nobody.
        place = flight.connect(endpoint.locations[0].uri) if endpoint.locations else client
        stored += place.do_get(endpoint.ticket, options).read_all().num_rows
    print(f"{stored} rows stored, in {len(info.endpoints)} endpoints")


if __name__ == "__main__":
    main()
