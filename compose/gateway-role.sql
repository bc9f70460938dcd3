-- What the gateway needs, and no more: the replication stream, and the tables for the rows that were there before.
CREATE ROLE walgate LOGIN REPLICATION PASSWORD 'walgate';
GRANT SELECT ON ALL TABLES IN SCHEMA public TO walgate;
