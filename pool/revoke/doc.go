// Package revoke has operators end claims of any host, in the layout 2.
//
// A revocation is a request to the host of a claim, which has the holder stop and then releases the slots. With force
// the slots are freed in the transaction of the request, whether the host is alive or not.
package revoke
