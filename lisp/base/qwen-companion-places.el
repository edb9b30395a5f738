;;; qwen-companion-places.el --- Names of files at other places  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; A place is where CLIs run that are not of this machine and user: another
;; host, another user, a container.  Its name is the beginning that TRAMP's
;; names of its files have, as "/ssh:host:".
;;
;; A file there that is reviewed has a copy here, which the Python process
;; keeps current: all that reads or watches the file does so with the copy.
;; Nothing in this file calls TRAMP for more than parsing a name.

;;; Code:

(require 'cl-lib)
(require 'seq)
(require 'subr-x)

(defcustom qwen-companion-remote-shared-directories nil
  "Directories of other places that are directories of this machine too.
An alist of the PLACE, as \"/docker:box:\", to a list of (THERE . HERE), the
names of one directory at both, as of one that is mounted into a container.
A CLI there works with the buffers of this machine then: it is told of
them, and its edits are reviewed and recorded as those of files here.
`qwen-companion-remote-places' says whether it is served."
  :group 'qwen-companion
  :type '(alist :key-type (string :tag "Place")
                :value-type (alist :key-type (directory :tag "There")
                                   :value-type (directory :tag "Here"))))

(defvar qwen-companion-places--served nil
  "The places that are served: (NAME . `place' message), newest first.")

(defvar qwen-companion-places--copies (make-hash-table :test #'equal)
  "Names of files at places, by the names of their copies here.")

(defun qwen-companion-places ()
  "Return the names of the places that are served."
  (mapcar #'car qwen-companion-places--served))

(defun qwen-companion-places-message (place)
  "Return the last message about PLACE, a property list, or nil."
  (cdr (assoc place qwen-companion-places--served)))

(defun qwen-companion-places-asking ()
  "Return a place, the way to which asks for a password, or nil."
  (seq-find (lambda (place)
              (eq 'asking (plist-get (qwen-companion-places-message place) :state)))
            (qwen-companion-places)))

(defun qwen-companion-places-set (place message)
  "Note MESSAGE, the newest about PLACE; with nil, that it is not served."
  (setq qwen-companion-places--served
        (assoc-delete-all place (copy-sequence qwen-companion-places--served)))
  (when message
    (push (cons place message) qwen-companion-places--served)))

(defun qwen-companion-places-forget ()
  "Forget all places; the names of copies stay, as rescued texts may have them."
  (setq qwen-companion-places--served nil))

(defun qwen-companion-places-of (file)
  "Return the served place that FILE is at, or nil."
  (cl-find-if (lambda (place) (string-prefix-p (concat place "/") file))
              (qwen-companion-places)))

(defun qwen-companion-places-copy (copy file)
  "Note that COPY is the copy here of FILE."
  (puthash copy file qwen-companion-places--copies))

(defun qwen-companion-places-name (file)
  "Return the original's name if FILE is a local copy of it, else FILE."
  (gethash file qwen-companion-places--copies file))

(defun qwen-companion-places-path (file)
  "Return the name that the CLIs of its machine have for FILE, or for its original."
  (let ((name (qwen-companion-places-name file)))
    (if (equal name file)
        file
      (file-remote-p name 'localname))))

(defun qwen-companion-places-shared (place)
  "Return the directories that PLACE shares, (THERE . HERE), without final slash."
  (mapcar (lambda (pair)
            (cons (directory-file-name (car pair))
                  (directory-file-name (expand-file-name (cdr pair)))))
          (cdr (assoc place qwen-companion-remote-shared-directories))))

(defun qwen-companion-places-shared-path (file place)
  "Return the name at PLACE of FILE of this machine, nil if it is not shared."
  (let ((file (directory-file-name (expand-file-name file))))
    (cl-loop for (there . here) in (qwen-companion-places-shared place)
             when (equal file here) return there
             when (string-prefix-p (file-name-as-directory here) file)
             return (concat (file-name-as-directory there)
                            (substring file (length (file-name-as-directory here)))))))

(declare-function tramp-dissect-file-name "tramp" (name &optional nodefault))
(declare-function tramp-file-name-user "tramp" (name) t)
(declare-function tramp-file-name-host "tramp" (name) t)

(defun qwen-companion-places-label (place)
  "Return the name of PLACE for a person: the host, and the user if named.
The mode line shows it, so no file name handler is called: for a name
that ends in a colon, `file-remote-p' asks the host for its home."
  (require 'tramp)
  (let* ((name (tramp-dissect-file-name place))
         (user (tramp-file-name-user name)))
    (concat user (and user "@") (tramp-file-name-host name))))

(defun qwen-companion-places-abbreviate (file)
  "Return FILE abbreviated for a person; at a place, like \"host:~/file\"."
  (let* ((name (qwen-companion-places-name file))
         (place (file-remote-p name)))
    (if (not place)
        (abbreviate-file-name name)
      (let ((path (file-remote-p name 'localname))
            (home (plist-get (qwen-companion-places-message place) :home)))
        (concat (qwen-companion-places-label place) ":"
                (if (and home (string-prefix-p (concat home "/") (concat path "/")))
                    (concat "~" (substring path (length home)))
                  path))))))

(defun qwen-companion-places-root (file)
  "Return the workspace root that FILE, at a served place, is in, or nil."
  (when-let* ((place (qwen-companion-places-of file))
              (names (mapcar (lambda (root) (concat place root))
                             (plist-get (qwen-companion-places-message place) :roots))))
    (car (sort (cl-remove-if-not
                (lambda (root)
                  (string-prefix-p (file-name-as-directory root) (file-name-as-directory file)))
                names)
               (lambda (a b) (> (length a) (length b)))))))

(provide 'qwen-companion-places)
;;; qwen-companion-places.el ends here
