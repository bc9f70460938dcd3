-- What the gateway needs, and no more: it reads the catalog and the replication stream, no table.
CREATE ROLE walgate LOGIN REPLICATION PASSWORD 'walgate';
