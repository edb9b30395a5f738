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
;; - There is no circle of `require', `autoload' and `declare-function', and in a
;;   folder none of symbols used: functions, accessors, faces, commands in keymaps.
;; - A symbol with the name of another file is not defined.
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

(defun structure--circles (needs)
  "Return the findings about circles in NEEDS, an alist (FEATURE . FEATURES).
Each circle that is met is one."
  (let ((done nil)
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
      (dolist (feature needs)
        (visit (car feature) nil)))
    (nreverse findings)))

(defconst structure--doors '(qwen-companion-chat-switch qwen-companion-chats)
  "Autoloaded commands in the menu of a file that their file needs.")

(defun structure--uses (files)
  "Return which files of its folder each of FILES uses, by symbols.
The value is an alist (FEATURE . FEATURES).  The name of a mode is no use:
a command of it checks where it is called."
  (let ((defined (structure--definitions files)))
    (mapcar
     (lambda (file)
       (let (uses)
         (structure--walk
          (lambda (symbol)
            (when-let* ((owner (and (symbolp symbol) (gethash symbol defined)))
                        ((not (equal owner (car file))))
                        ((not (string-suffix-p "-mode" (symbol-name symbol))))
                        ((not (memq symbol structure--doors)))
                        ((equal (structure--folder owner) (structure--folder (car file)))))
              (cl-pushnew owner uses :test #'equal)))
          (structure--without-requires (cdr file)))
         (cons (car file) (nreverse uses))))
     files)))

(defun structure--without-requires (forms)
  "Return FORMS without `require' and `provide': a feature may be a symbol too."
  (if (consp forms)
      (unless (memq (car forms) '(require provide))
        (cons (structure--without-requires (car forms))
              (structure--without-requires (cdr forms))))
    forms))

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

(defun structure--folder (feature)
  "Return the folder of FEATURE."
  (alist-get feature structure--folders nil nil #'equal))

(defun structure--floor (feature)
  "Return the number of the floor of FEATURE, nil if it is on none."
  (seq-position structure--floors (structure--folder feature)
                (lambda (floor folder) (member folder floor))))

(defun structure--definitions (files)
  "Return a hash table of all that FILES define: name to feature."
  (let ((defined (make-hash-table)))
    (pcase-dolist (`(,feature . ,forms) files)
      (dolist (form forms)
        (pcase form
          ((or `(defvar ,_) `(declare-function . ,_) `(define-key . ,_)))
          (`(,(and (pred symbolp) (app symbol-name (pred (string-match-p "\\`\\(?:cl-\\)?def"))))
             ,(or `(,name . ,_) name) . ,rest)
           (when (and (symbolp name) (string-prefix-p structure--name (symbol-name name)))
             (puthash name feature defined)
             (when (eq 'cl-defstruct (car form))
               (dolist (slot rest)
                 (unless (stringp slot)
                   (puthash (intern (format "%s-%s" name (if (consp slot) (car slot) slot)))
                            feature defined)))))))))
    defined))

(defconst structure--names-of-users
  '(qwen-companion-context qwen-companion-journal qwen-companion-plan qwen-companion-terminal)
  "Commands and options with the name of another file, which users know.")

(defun structure--namesakes (files)
  "Return the findings about symbols in FILES with the name of another file."
  (let (findings)
    (maphash (lambda (symbol owner)
               (when (and (assoc (symbol-name symbol) files)
                          (not (equal owner (symbol-name symbol)))
                          (not (memq symbol structure--names-of-users)))
                 (push (cons owner (format "name of another file: %s" symbol)) findings)))
             (structure--definitions files))
    (nreverse findings)))

(defun structure--climbs (files)
  "Return the findings about uses of a higher floor in FILES."
  (let ((defined (structure--definitions files))
        (findings nil))
    (pcase-dolist (`(,feature . ,forms) files)
      (let ((floor (structure--floor feature))
            (folder (structure--folder feature))
            seen)
        (when floor
          (structure--walk
           (lambda (symbol)
             (when-let* ((owner (and (symbolp symbol)
                                     (not (memq symbol seen))
                                     ;; The group of all options, and whether the mode is on.
                                     (not (memq symbol '(qwen-companion qwen-companion-mode)))
                                     (gethash symbol defined)))
                         (other (structure--folder owner)))
               (push symbol seen)
               (unless (or (equal folder other)
                           (equal other "extensions")
                           (if-let* ((height (structure--floor owner)))
                               (< height floor)
                             (equal folder "menu")))
                 (push (cons feature (format "%s/ is not below %s/: %s of %s" other folder symbol owner))
                       findings))))
           (structure--without-requires forms)))))
    (nreverse findings)))

;;; All

(defun structure-findings (&optional directory)
  "Return what is found in the package's files in DIRECTORY, the current one.
The value is a list of (FEATURE . TEXT)."
  (let ((files (structure--files (or directory default-directory))))
    (append (structure--circles (mapcar (lambda (file)
                                          (cons (car file) (structure--needs (cdr file))))
                                        files))
            (structure--circles (structure--uses files))
            (structure--names files) (structure--namesakes files) (structure--programs files)
            (structure--climbs files))))

(defun structure-check ()
  "Print what is found in the current directory; exit with 1 if there is any."
  (let ((findings (structure-findings)))
    (pcase-dolist (`(,feature . ,text) findings)
      (message "%s.el: %s" feature text))
    (kill-emacs (if findings 1 0))))

(provide 'structure)
;;; structure.el ends here
