"""The contract between the gateway and its readers: Avro types, records, markers, names of topics,
wire format, and the client of the schema registry.

In: descriptions of relations, and names. Out: schemas, schema ids, topic names and LSNs. This
package must not know either side, and only registry_client.py and compatibility_levels.py wait for
a server.
"""

IS_WALGATE = True  # walgate.py checks for this: another distribution may have a package of this name
