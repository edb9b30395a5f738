;;; structure.el --- Check how the files of the package use each other  -*- lexical-binding: t; -*-

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; emacs -Q --batch -l scripts/structure.el -f structure-check
;;
;; What a file uses of another one shows in its `require' forms, and no two
;; files need each other:
;;
;; - The folders of lisp/ are floors: a file uses its own folder and lower ones.
;;   Each symbol counts: a function that is called, a command in a keymap, a
;;   function in a hook.  Of extensions/, a file for one other package may be
;;   autoloaded from any floor; the menu uses the commands of the top file too.
;; - There is no circle of `require', `autoload' and `declare-function'.
;; - A private name, one with two hyphens, has the prefix of its own file and
;;   is in no other.
;; - A variable of another file is not declared: that file is required.
;; - `if-let', `when-let' and `and-let' have a star: Emacs 31 warns of others.
;; - A timer runs a function with a name, see qwen-companion-timers.el.
;; - Programs are started and looked for in qwen-companion-programs.el only.
;;
;; Every finding is printed as FILE: TEXT, and any finding fails.  A test of
;; the package checks the same.

;;; Code:

(require 'cl-lib)
(require 'seq)
(require 'subr-x)

(defconst structure--name "qwen-companion" "What all names of the package begin with.")

(defconst structure--private "\\`\\(?:make-\\)?\\(qwen-companion.*?\\)--"
  "Matches a private name; its first group is the feature it belongs to.")

(defconst structure--floors
  '(("base") ("backend") ("context") ("terminal" "disk" "tools") ("review") ("prompts")
    ("changes") ("chat") ("menu"))
  "Folders of lisp/ by floor, from the lowest up.")

(defvar structure--folders nil
  "Alist of the package's files and their folders: (FEATURE . FOLDER).")

(defun structure--files (directory)
  "Return an alist of the package's files below DIRECTORY: (FEATURE . FORMS)."
  (let ((files (append (directory-files
                        directory t (format "\\`%s.*\\.el\\'" structure--name))
                       (file-expand-wildcards (expand-file-name "lisp/*/*.el" directory)))))
    (setq structure--folders nil)
    (mapcar (lambda (file)
              (push (cons (file-name-base file)
                          (file-name-nondirectory
                           (directory-file-name
                            (file-relative-name (file-name-directory file) directory))))
                    structure--folders)
              (cons (file-name-base file) (structure--read file)))
            (seq-remove (lambda (file) (string-suffix-p "-autoloads.el" file)) files))))

(defun structure--read (file)
  "Return the forms in FILE."
  (with-temp-buffer
    (insert-file-contents file)
    (let (forms)
      (condition-case nil
          (while t
            (push (read (current-buffer)) forms))
        (end-of-file (nreverse forms))))))

(defun structure--walk (function form)
  "Call FUNCTION with FORM and with all in it, lists and atoms."
  (funcall function form)
  (cond ((consp form)
         (while (consp form)
           (structure--walk function (pop form)))
         (when form
           (structure--walk function form)))
        ((vectorp form)
         (mapc (apply-partially #'structure--walk function) form))))

;;; Circles

(defun structure--needs (forms)
  "Return the package's features that FORMS require or declare."
  (let (needs)
    (dolist (form forms (delete-dups (nreverse needs)))
      (structure--walk
       (lambda (form)
         (let ((needed (pcase form
                         (`(require ',(and (pred symbolp) feature) . ,_)
                          (symbol-name feature))
                         (`(declare-function ,_ ,(and (pred stringp) file) . ,_) file)
                         (`(autoload ,_ ,(and (pred stringp) file) . ,_) file))))
           (when (and needed (string-prefix-p structure--name needed))
             (push needed needs))))
       form))))

(defun structure--circles (files)
  "Return the findings about circles in FILES: one for each circle met."
  (let ((needs (mapcar (lambda (file)
                         (cons (car file) (structure--needs (cdr file))))
                       files))
        (done nil)
        (findings nil))
    (cl-labels ((visit (feature path)
                  (cond
                   ((member feature path)
                    (let ((circle (reverse (seq-take path (1+ (seq-position path feature))))))
                      (push (cons feature
                                  (format "circle: %s" (string-join (append circle (list feature)) " > ")))
                            findings)))
                   ((not (member feature done))
                    (dolist (needed (cdr (assoc feature needs)))
                      (visit needed (cons feature path)))
                    (push feature done)))))
      (dolist (file files)
        (visit (car file) nil)))
    (nreverse findings)))

;;; Names

(defun structure--defined (files)
  "Return a hash table of the variables that FILES define: name to feature."
  (let ((defined (make-hash-table)))
    (pcase-dolist (`(,feature . ,forms) files)
      (dolist (form forms)
        (pcase form
          ((or `(,(or 'defcustom 'defconst 'defvar-local) ,name . ,_)
               `(defvar ,name ,_ . ,_)
               `(,(or 'define-minor-mode 'define-globalized-minor-mode) ,name . ,_))
           (puthash name feature defined)))))
    defined))

(defun structure--private-owner (symbol)
  "Return the feature whose private name SYMBOL is, nil if it is not private."
  (let ((name (symbol-name symbol)))
    (and (string-match structure--private name)
         (match-string 1 name))))

(defun structure--names (files)
  "Return the findings about names in FILES."
  (let ((defined (structure--defined files))
        (findings nil))
    (pcase-dolist (`(,feature . ,forms) files)
      (let (seen)
        (dolist (form forms)
          (structure--walk
           (lambda (form)
             (let ((text
                    (pcase form
                      ((and (pred symbolp)
                            (app structure--private-owner (and owner (pred stringp)))
                            (guard (not (equal owner feature))))
                       (format "private to %s: %s" owner form))
                      ((and `(defvar ,name)
                            (guard (not (equal feature (gethash name defined feature)))))
                       (format "variable of %s declared: %s" (gethash name defined) name))
                      (`(,(and (or 'if-let 'when-let 'and-let) name) . ,_)
                       (format "without a star: %s" name))
                      (`(run-at-time ,_ ,_ (lambda . ,_) . ,_)
                       "a timer runs a lambda")
                      ((and `(run-at-time ,_ ,_ (function ,(and name (pred symbolp))) . ,_)
                            (guard (not (string-prefix-p "qwen-companion-" (symbol-name name)))))
                       (format "a timer runs a function of others: %s" name)))))
               (when (and text (not (member text seen)))
                 (push text seen)
                 (push (cons feature text) findings))))
           form))))
    (nreverse findings)))

;;; Programs

(defconst structure--starters
  '( async-shell-command call-process call-process-region call-process-shell-command compilation-start
     executable-find make-process process-file process-file-shell-command process-lines
     process-lines-handling-status process-lines-ignore-status shell-command shell-command-on-region
     shell-command-to-string start-file-process start-file-process-shell-command start-process
     start-process-shell-command)
  "Functions that start or find programs.")

(defconst structure--indirect-starters '(compile project-files vc-git-command vc-refresh-state)
  "Functions of Emacs that start programs when called; most of them run git.")

(defun structure--programs (files)
  "Return the findings about programs that FILES start."
  (let (findings)
    (pcase-dolist (`(,feature . ,forms) (assoc-delete-all "qwen-companion-programs" (copy-sequence files)))
      (structure--walk
       (lambda (form)
         (when (or (memq form structure--starters)
                   (memq (car-safe form) structure--indirect-starters))
           (push (cons feature (format "starts a program: %s" (if (consp form) (car form) form)))
                 findings)))
       forms))
    (nreverse findings)))

;;; Floors

(defun structure--floor (feature)
  "Return the number of the floor of FEATURE, nil if it is on none."
  (let ((folder (alist-get feature structure--folders nil nil #'equal)))
    (seq-position structure--floors folder (lambda (floor folder) (member folder floor)))))

(defun structure--definitions (files)
  "Return a hash table of all that FILES define: name to feature."
  (let ((defined (make-hash-table)))
    (pcase-dolist (`(,feature . ,forms) files)
      (dolist (form forms)
        (pcase form
          ((or `(defvar ,_) `(declare-function . ,_) `(define-key . ,_)))
          (`(,(and (pred symbolp) (app symbol-name (pred (string-match-p "\\`\\(?:cl-\\)?def"))))
             ,(or `(,name . ,_) name) . ,_)
           (when (and (symbolp name) (string-prefix-p structure--name (symbol-name name)))
             (puthash name feature defined))))))
    defined))

(defun structure--climbs (files)
  "Return the findings about uses of a higher floor in FILES."
  (let ((defined (structure--definitions files))
        (findings nil))
    (pcase-dolist (`(,feature . ,forms) files)
      (let ((floor (structure--floor feature))
            (folder (alist-get feature structure--folders nil nil #'equal))
            seen)
        (when floor
          (structure--walk
           (lambda (symbol)
             (when-let* ((owner (and (symbolp symbol)
                                     (not (memq symbol seen))
                                     ;; The group of all options, and whether the mode is on.
                                     (not (memq symbol '(qwen-companion qwen-companion-mode)))
                                     ;; The name of a file may be that of a command too.
                                     (not (assoc (symbol-name symbol) files))
                                     (gethash symbol defined)))
                         (other (alist-get owner structure--folders nil nil #'equal)))
               (push symbol seen)
               (unless (or (equal folder other)
                           (equal other "extensions")
                           (if-let* ((height (structure--floor owner)))
                               (< height floor)
                             (equal folder "menu")))
                 (push (cons feature (format "%s/ is not below %s/: %s of %s" other folder symbol owner))
                       findings))))
           forms))))
    (nreverse findings)))

;;; All

(defun structure-findings (&optional directory)
  "Return what is found in the package's files in DIRECTORY, the current one.
The value is a list of (FEATURE . TEXT)."
  (let ((files (structure--files (or directory default-directory))))
    (append (structure--circles files) (structure--names files) (structure--programs files)
            (structure--climbs files))))

(defun structure-check ()
  "Print what is found in the current directory; exit with 1 if there is any."
  (let ((findings (structure-findings)))
    (pcase-dolist (`(,feature . ,text) findings)
      (message "%s.el: %s" feature text))
    (kill-emacs (if findings 1 0))))

(provide 'structure)
;;; structure.el ends here
