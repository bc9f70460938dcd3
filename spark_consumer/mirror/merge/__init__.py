"""The merge of what was appended to a mirror into its tables: when it is due, how it is cut into
slices, and how it is carried out.

In: `changes`, and the states of the tables. Out: merged tables, and a version in the manifest. This
package must not know where changes come from, nor the logs of Delta.
"""
