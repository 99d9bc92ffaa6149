// A cluster as part of a program in TypeScript: the component `Cluster` of busbar, with the keys of `busbar:cluster` in camel case.
import * as busbar from "@pulumi/busbar"; // made by `pulumi package add` (README.md)
import * as pulumi from "@pulumi/pulumi";
import * as config from "./cluster.json";

const cluster = new busbar.Cluster("cluster", {
    config,
    sshPrivateKey: new pulumi.Config().requireSecret("sshPrivateKey"),
});

export const busbw = cluster.ncclBusbwGbps;
export const passed = cluster.ncclPassed;
export const details = cluster.details;
export const kubeconfig = cluster.kubeconfig;
