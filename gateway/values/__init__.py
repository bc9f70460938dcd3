"""Convert the values of columns from PostgreSQL's forms to Avro.

    column_codec.py column_readers.py row_readers.py    encoders and readers of a column and a row
    protected_columns.py                                columns dropped, nulled, hashed, truncated
    renderers.py                                        binary form -> PostgreSQL's text, by type
    integers.py floats.py numeric.py dates.py text.py   encoders and text of the common types
    arrays.py composites.py ranges.py geometric.py      encoders or text of the other types
    network.py text_search.py system.py extensions.py   text of the other types
    special_values.py                                   exceptions: values beyond the Avro type
    built_in_types.py                                   the facts of PostgreSQL's built-in types

In: the bytes that PostgreSQL sent, in text or binary form. Out: Avro bytes, or PostgreSQL's text
for `special`. This package is pure and must not know records or topics: schemas/avro_types.py
decides the Avro type of a column, and gateway/events puts the values of a row together.
"""
