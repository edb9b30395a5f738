;;; qwen-companion-places.el --- Names of remote files  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; A place is where remote CLIs run: another host, another user, a container.
;; Its name is the prefix of its files' names in TRAMP, such as "/ssh:host:".
;;
;; A remote file in review has a local copy, which the Python process updates;
;; everything that reads or watches the file uses the copy.
;;
;; This file calls TRAMP only to parse names.

;;; Code:

(require 'cl-lib)
(require 'seq)
(require 'subr-x)

(defcustom qwen-companion-remote-shared-directories nil
  "Remote directories that are also directories of this machine.
An alist (PLACE . ((THERE . HERE) ...)): PLACE is like \"/docker:box:\",
THERE and HERE name the same directory, such as one mounted into a
container.  A CLI there works with local buffers: it gets them as context,
and its edits are reviewed and recorded like edits of local files.  The
option `qwen-companion-remote-places' controls whether PLACE is served."
  :group 'qwen-companion
  :type '(alist :key-type (string :tag "Place")
                :value-type (alist :key-type (directory :tag "There")
                                   :value-type (directory :tag "Here"))))

(defvar qwen-companion-places--served nil
  "Alist of the served places: (NAME . `place' message), newest first.")

(defvar qwen-companion-places--copies (make-hash-table :test #'equal)
  "Names of remote files by the names of their local copies.")

(defun qwen-companion-places ()
  "Return the names of the places that are served."
  (mapcar #'car qwen-companion-places--served))

(defun qwen-companion-places-message (place)
  "Return the last message about PLACE, a property list, or nil."
  (cdr (assoc place qwen-companion-places--served)))

(defun qwen-companion-places-set (place message)
  "Store MESSAGE, the newest about PLACE; with nil, remove PLACE."
  (setq qwen-companion-places--served
        (assoc-delete-all place (copy-sequence qwen-companion-places--served)))
  (when message
    (push (cons place message) qwen-companion-places--served)))

(defun qwen-companion-places-forget ()
  "Forget all places, but not the names of copies: saved texts may use them."
  (setq qwen-companion-places--served nil))

(declare-function tramp-dissect-file-name "tramp" (name &optional nodefault))
(declare-function tramp-file-name-user "tramp" (name) t)
(declare-function tramp-file-name-host "tramp" (name) t)
(declare-function tramp-file-name-localname "tramp" (name) t)
(declare-function tramp-make-tramp-file-name "tramp" (&rest args))

;; Messages, timers and the mode line must never wait for a place, so they call
;; no file name handler: they use these functions for remote names.

(defun qwen-companion-places-remote-p (file)
  "Return non-nil when FILE is remote."
  (not (memq (find-file-name-handler file 'file-remote-p) '(nil file-name-non-special))))

(defun qwen-companion-places-split (file)
  "Return (PLACE . PATH) for the remote FILE, or nil for a local one."
  (when (qwen-companion-places-remote-p file)
    (require 'tramp)
    (let ((name (tramp-dissect-file-name file)))
      (cons (tramp-make-tramp-file-name name 'noloc)
            (tramp-file-name-localname name)))))

(defun qwen-companion-places-visiting (file)
  "Return the buffer that visits FILE by exactly this name, or nil."
  (cl-find file (buffer-list) :key #'buffer-file-name :test #'equal))

(defun qwen-companion-places-directory (name)
  "Return NAME, of a directory, with a final slash."
  (let ((file-name-handler-alist nil))
    (file-name-as-directory name)))

(defun qwen-companion-places-last-part (name)
  "Return the last part of NAME, of a directory."
  (let ((file-name-handler-alist nil))
    (file-name-nondirectory (directory-file-name name))))

(defun qwen-companion-places-below-p (file directory)
  "Return non-nil when FILE is DIRECTORY or below it, by these names."
  (string-prefix-p (qwen-companion-places-directory directory)
                   (qwen-companion-places-directory file)))

(defun qwen-companion-places-of (file)
  "Return the served place that FILE is at, or nil."
  (cl-find-if (lambda (place) (string-prefix-p (concat place "/") file))
              (qwen-companion-places)))

(defun qwen-companion-places-copy (copy file)
  "Record COPY as the local copy of FILE."
  (puthash copy file qwen-companion-places--copies))

(defun qwen-companion-places-name (file)
  "Return the remote name if FILE is a local copy, else FILE."
  (gethash file qwen-companion-places--copies file))

(defun qwen-companion-places-path (file)
  "Return the name of FILE on its own machine, or of its original for a copy."
  (let ((name (qwen-companion-places-name file)))
    (if (equal name file)
        file
      (cdr (qwen-companion-places-split name)))))

(defun qwen-companion-places-shared (place)
  "Return the directories that PLACE shares, (THERE . HERE), without final slash."
  (mapcar (lambda (pair)
            (cons (directory-file-name (car pair))
                  (directory-file-name (expand-file-name (cdr pair)))))
          (cdr (assoc place qwen-companion-remote-shared-directories))))

(defun qwen-companion-places-shared-path (file place)
  "Return the name at PLACE of the local FILE, or nil if it is not shared."
  (let ((file (directory-file-name (expand-file-name file))))
    (cl-loop for (there . here) in (qwen-companion-places-shared place)
             when (equal file here) return there
             when (string-prefix-p (file-name-as-directory here) file)
             return (concat (file-name-as-directory there)
                            (substring file (length (file-name-as-directory here)))))))

(defun qwen-companion-places-label (place)
  "Return a short name of PLACE to show: the host, and the user if named."
  (require 'tramp)
  (let* ((name (tramp-dissect-file-name place))
         (user (tramp-file-name-user name)))
    (concat user (and user "@") (tramp-file-name-host name))))

(defun qwen-companion-places-abbreviate (file)
  "Return FILE abbreviated to show; a remote one is like \"host:~/file\"."
  (let ((name (qwen-companion-places-name file)))
    (pcase (qwen-companion-places-split name)
      ('nil (abbreviate-file-name name))
      (`(,place . ,path)
       (let ((home (plist-get (qwen-companion-places-message place) :home)))
         (concat (qwen-companion-places-label place) ":"
                 (if (and home (qwen-companion-places-below-p path home))
                     (concat "~" (substring path (length home)))
                   path)))))))

(defun qwen-companion-places-root (file)
  "Return the workspace root around FILE at a served place, or nil."
  (when-let* ((place (qwen-companion-places-of file))
              (names (mapcar (lambda (root) (concat place root))
                             (plist-get (qwen-companion-places-message place) :roots))))
    (car (sort (cl-remove-if-not
                (lambda (root) (qwen-companion-places-below-p file root))
                names)
               (lambda (a b) (> (length a) (length b)))))))

(provide 'qwen-companion-places)
;;; qwen-companion-places.el ends here
