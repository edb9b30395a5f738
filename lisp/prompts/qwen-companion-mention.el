;;; qwen-companion-mention.el --- Completing files after @ in a prompt  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; `@' and any part of a file's name complete to a file of the project, in
;; prompts for a CLI and in chats.  The category of the completion is that of
;; `project-find-file', so it has the style that the user has chosen there.
;;
;; Where there is no project, or after `/', `./' and `../', a name is completed
;; directory by directory.

;;; Code:

(require 'cl-lib)
(require 'subr-x)
(require 'qwen-companion-quote)

(declare-function project-files "project" (project &optional dirs))

(defconst qwen-companion-mention-character "\\(?:\\\\.\\|[^ \t\n\\]\\)"
  "Matches a character of a file name after `@', quoted or not.")

(defconst qwen-companion-mention--files-age 30
  "Seconds for which the list of a project's files is used again.")

(defvar-local qwen-companion-mention--files nil
  "The files of a project when they were last read: (TIME ROOT . NAMES).")

(defun qwen-companion-mention--files (root)
  "Return the files of the project that ROOT, a local directory, is in.
Return only those below ROOT, relative to it and escaped; nil where there
is no project.  None has a line end, which would end the word."
  (pcase qwen-companion-mention--files
    (`(,(and time (guard (< (- (float-time) time) qwen-companion-mention--files-age)))
       ,(pred (equal root)) . ,names)
     names)
    (_
     (require 'project)
     (let* ((project (project-current nil root))
            ;; It signals an error where git does, as in a broken repository.
            (files (and project (ignore-errors (project-files project))))
            (names (cl-loop for file in files
                            for name = (qwen-companion-quote-relative-name file root)
                            unless (or (file-name-absolute-p name)
                                       (string-search "\n" name))
                            collect (qwen-companion-quote-escape name))))
       (setq qwen-companion-mention--files (cons (float-time) (cons root names)))
       names))))

(defun qwen-companion-mention-complete (root limit)
  "Complete the file of ROOT, a directory, after `@' before point.
Search for the `@' no further back than LIMIT.  Return what a function in
`completion-at-point-functions' does, nil where there is no `@'."
  (when-let* ((start (and (not (file-remote-p root))
                          (qwen-companion-mention--start limit))))
    (let* ((root (file-name-as-directory root))
           (files (and (not (string-match-p "\\`\\(?:/\\|~\\|\\.\\.?/\\)"
                                            (buffer-substring-no-properties start (point))))
                       (qwen-companion-mention--files root))))
      (list start (point)
            (if files
                (lambda (string predicate action)
                  (if (eq action 'metadata)
                      '(metadata (category . project-file))
                    (complete-with-action action files string predicate)))
              (qwen-companion-mention--directory-table root))))))

(defun qwen-companion-mention--start (limit)
  "Return the beginning of the file name after `@' that ends at point, or nil.
The `@' is not before LIMIT."
  (save-excursion
    (let ((end (point))
          start)
      (goto-char (max limit (line-beginning-position)))
      (while (and (not start)
                  (re-search-forward
                   (concat "\\(?:^\\|[ \t(]\\)@\\(" qwen-companion-mention-character "*\\)")
                   end t))
        (when (= end (point))
          (setq start (match-beginning 1))))
      start)))

(defun qwen-companion-mention--directory-table (root)
  "Return a completion table of file names, relative to ROOT or absolute.
Only one directory of this machine is read at a time."
  (completion-table-with-quoting
   (lambda (string predicate action)
     (let ((default-directory root)
           (file-name-handler-alist nil))
       (completion-file-name-table
        string
        (lambda (name)
          (not (or (member name '("./" "../" ".git/"))
                   ;; It would end the word, even quoted.
                   (string-search "\n" name)
                   (and predicate (not (funcall predicate name))))))
        action)))
   #'qwen-companion-quote-unescape
   #'qwen-companion-mention--requote))

(defun qwen-companion-mention--requote (position name)
  "Return the quoted position of POSITION in the file name written as NAME.
See `completion-table-with-quoting'."
  (let ((written 0))
    (dotimes (_ position)
      (cl-incf written (if (eq ?\\ (aref name written)) 2 1)))
    (cons written #'qwen-companion-quote-escape)))

(provide 'qwen-companion-mention)
;;; qwen-companion-mention.el ends here
