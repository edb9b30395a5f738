;;; qwen-companion-servers.el --- Ask the language servers of Emacs  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;; This program is free software; you can redistribute it and/or modify
;; it under the terms of the GNU General Public License as published by
;; the Free Software Foundation, either version 3 of the License, or
;; (at your option) any later version.

;; This program is distributed in the hope that it will be useful,
;; but WITHOUT ANY WARRANTY; without even the implied warranty of
;; MERCHANTABILITY or FITNESS FOR A PARTICULAR PURPOSE.  See the
;; GNU General Public License for more details.

;; You should have received a copy of the GNU General Public License
;; along with this program.  If not, see <https://www.gnu.org/licenses/>.
;;; Commentary:

;; Language servers that eglot or lsp-mode has started are asked here, without
;; waiting: their functions for xref and imenu keep Emacs until the server
;; answers, and eglot's for imenu reads keys meanwhile.  An answer is what the
;; server said; it may not be able to say, fail, or take too long, and each of
;; these is told from "there is none".
;;
;; Servers report problems by themselves.  What they report of the text that
;; a buffer has now is told from what they report of an earlier one.

;;; Code:

(require 'cl-lib)
(require 'eieio)
(require 'subr-x)
(require 'url-util)
(require 'qwen-companion-clock)

(declare-function eglot--TextDocumentIdentifier "ext:eglot" ())
(declare-function eglot--TextDocumentPositionParams "ext:eglot" ())
(declare-function eglot--VersionedTextDocumentIdentifier "ext:eglot" ())
(declare-function eglot--capabilities "ext:eglot" (server) t)
(declare-function eglot--signal-textDocument/didChange "ext:eglot" ())
(declare-function eglot-current-server "ext:eglot" ())
(declare-function eglot-managed-p "ext:eglot" ())
(declare-function jsonrpc-async-request "jsonrpc"
                  (connection method params &rest args))
(declare-function lsp--flush-delayed-changes "ext:lsp-mode" ())
(declare-function lsp--text-document-identifier "ext:lsp-mode" ())
(declare-function lsp--text-document-position-params "ext:lsp-mode" ())
(declare-function lsp--versioned-text-document-identifier "ext:lsp-mode" ())
(declare-function lsp-feature\? "ext:lsp-mode" (method))
(declare-function lsp-request-async "ext:lsp-mode" (method params callback &rest keys))
(declare-function lsp-workspaces "ext:lsp-mode" ())
(defvar lsp--default-notification-handlers)

(defconst qwen-companion-servers--wait 4
  "Seconds that a server may take for an answer.
The Python process waits a little longer, see `tools/calls.py'.")

;;; Servers

(defun qwen-companion-servers-current ()
  "Return the language server for the current buffer, nil when there is none.
That is an object to compare with `equal'."
  (cond ((and (fboundp 'eglot-managed-p) (eglot-managed-p))
         (eglot-current-server))
        ((bound-and-true-p lsp-managed-mode)
         (lsp-workspaces))))

(defun qwen-companion-servers--eglot-p ()
  "Return non-nil when the current buffer's server is one of eglot."
  (and (fboundp 'eglot-managed-p) (eglot-managed-p)))

(defun qwen-companion-servers-name ()
  "Return what to call the language server of the current buffer."
  (format "The language server for %s"
          (string-remove-suffix "-mode" (symbol-name major-mode))))

(defun qwen-companion-servers-get (object key)
  "Return what OBJECT, of a server's JSON, has at KEY, a keyword."
  (if (hash-table-p object)
      (gethash (substring (symbol-name key) 1) object)
    (plist-get object key)))

(defun qwen-companion-servers-list (value)
  "Return VALUE, one object of JSON, several, or none, as a list of objects."
  (if (or (hash-table-p value) (keywordp (car-safe value)))
      (list value)
    (append value nil)))

(defun qwen-companion-servers-send-text ()
  "Tell the server of the current buffer its text now.
Eglot would do that half a second after a change, lsp-mode a second."
  (cond ((qwen-companion-servers--eglot-p)
         (eglot--signal-textDocument/didChange))
        ((bound-and-true-p lsp-managed-mode)
         (lsp--flush-delayed-changes))))

;;; Questions

(defconst qwen-companion-servers--capabilities
  '((:textDocument/definition . :definitionProvider)
    (:textDocument/references . :referencesProvider)
    (:textDocument/hover . :hoverProvider)
    (:textDocument/documentSymbol . :documentSymbolProvider)
    (:workspace/symbol . :workspaceSymbolProvider))
  "What a server that can answer a question says of itself.")

(defun qwen-companion-servers--capable-p (method)
  "Return non-nil when the server of the current buffer can answer METHOD."
  (if (qwen-companion-servers--eglot-p)
      (not (memq (plist-get (eglot--capabilities (eglot-current-server))
                            (alist-get method qwen-companion-servers--capabilities))
                 '(nil :json-false)))
    (lsp-feature\? (substring (symbol-name method) 1))))

(defun qwen-companion-servers--parameters (method)
  "Return the parameters of METHOD about point and the current buffer."
  (pcase method
    (:workspace/symbol nil)
    (:textDocument/documentSymbol
     (list :textDocument (if (qwen-companion-servers--eglot-p)
                             (eglot--TextDocumentIdentifier)
                           (lsp--text-document-identifier))))
    (_ (if (qwen-companion-servers--eglot-p)
           (eglot--TextDocumentPositionParams)
         (lsp--text-document-position-params)))))

(defun qwen-companion-servers-ask (method more finish)
  "Ask the server of the current buffer METHOD about point.
MORE are parameters beside the place.  FINISH is called, later, with a
function that returns the server's answer, or signals a `user-error' that
says why there is none."
  (let ((name (qwen-companion-servers-name)))
    (cl-flet ((fail (format &rest arguments)
                (let ((text (apply #'format (concat "%s " format) name arguments)))
                  (funcall finish (lambda () (user-error "%s" text))))))
      (if (not (qwen-companion-servers--capable-p method))
          (fail "does not answer that (%s); search the files instead"
                (substring (symbol-name method) 1))
        (qwen-companion-servers-send-text)
        (qwen-companion-servers--request
         method
         (append (qwen-companion-servers--parameters method) more)
         (lambda (result) (funcall finish (lambda () result)))
         (lambda (text) (fail "refuses to say that (%s); search the files instead" text))
         (lambda ()
           (fail "has not answered within %d seconds; try again later or search the files instead"
                 qwen-companion-servers--wait)))))))

(defun qwen-companion-servers--request (method parameters done failed late)
  "Send METHOD with PARAMETERS to the server of the current buffer.
Call one of these, once: DONE with its result, FAILED with a text, or
LATE."
  (if (qwen-companion-servers--eglot-p)
      (jsonrpc-async-request
       (eglot-current-server) method parameters
       :success-fn done
       :error-fn (lambda (err) (funcall failed (or (plist-get err :message) "unknown")))
       :timeout qwen-companion-servers--wait
       :timeout-fn late)
    (let* ((pending t)
           (once (lambda (function &rest arguments)
                   (when pending
                     (setq pending nil)
                     (apply function arguments))))
           (timer (run-at-time qwen-companion-servers--wait nil
                               #'qwen-companion-clock-call once late)))
      (lsp-request-async
       (substring (symbol-name method) 1) parameters
       (lambda (result)
         (cancel-timer timer)
         (funcall once done result))
       :mode 'detached
       :error-handler (lambda (err)
                        (cancel-timer timer)
                        (funcall once failed
                                 (or (qwen-companion-servers-get err :message) "unknown")))))))

;;; Answers

(defun qwen-companion-servers-place (object)
  "Return (FILE . LINE) of OBJECT, a location or a symbol with one.
LINE counts from 1.  FILE is nil when OBJECT has none, or none on this
machine."
  (let* ((location (or (qwen-companion-servers-get object :location) object))
         (range (cl-some (lambda (key) (qwen-companion-servers-get location key))
                         '(:targetSelectionRange :selectionRange :range)))
         (start (and range (qwen-companion-servers-get range :start))))
    (cons (qwen-companion-servers--file
           (or (qwen-companion-servers-get location :targetUri)
               (qwen-companion-servers-get location :uri)))
          (and start (1+ (qwen-companion-servers-get start :line))))))

(defun qwen-companion-servers--file (uri)
  "Return the name of the file on this machine that URI means, or nil."
  (when (string-prefix-p "file:///" (or uri ""))
    (decode-coding-string (url-unhex-string (substring uri (length "file://")))
                          'utf-8)))

(defconst qwen-companion-servers--kinds
  ["file" "module" "namespace" "package" "class" "method" "property" "field"
   "constructor" "enum" "interface" "function" "variable" "constant" "string"
   "number" "boolean" "array" "object" "key" "null" "enum member" "struct"
   "event" "operator" "type parameter"]
  "Names of the kinds of symbols, from 1.")

(defun qwen-companion-servers-kind (symbol)
  "Return what kind of thing SYMBOL, of a server's JSON, is, in words."
  (let ((kind (qwen-companion-servers-get symbol :kind)))
    (if (and (integerp kind) (<= 1 kind (length qwen-companion-servers--kinds)))
        (aref qwen-companion-servers--kinds (1- kind))
      "symbol")))

(provide 'qwen-companion-servers)
;;; qwen-companion-servers.el ends here
