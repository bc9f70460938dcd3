-- The privileges that the gateway needs: the replication stream, and SELECT on the tables to read existing rows.
CREATE ROLE walgate LOGIN REPLICATION PASSWORD 'walgate';
GRANT SELECT ON ALL TABLES IN SCHEMA public TO walgate;
